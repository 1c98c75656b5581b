"""Draft heads: small networks that read the hidden states of the target (EAGLE-3, DFlash, Medusa)."""
