"""Trees in the tensors of engines that keep their own loop: verified there, and drawn there."""
