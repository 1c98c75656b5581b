"""For engines that keep their own loop: a tree verified, and drawn, in their tensors."""
