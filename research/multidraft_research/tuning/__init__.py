"""What `multidraft tune` measures: a pair's costs and acceptance, the speeds of trees, a target's passes alone."""
