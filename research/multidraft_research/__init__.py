"""What researchers need beside the product: captures, studies, solvers, training."""
