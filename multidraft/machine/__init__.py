"""Facts of the machine: devices, memory, identity."""
