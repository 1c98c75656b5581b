"""Measuring a server from outside: tokens a chunk, and how many times as fast as plain decoding it is."""
