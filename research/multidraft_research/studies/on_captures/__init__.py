"""Studies of single nodes, one file each: they need the logits of a capture and no model."""
