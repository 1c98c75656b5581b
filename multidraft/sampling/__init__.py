"""From logits to the distribution that is sampled from: settings, processors, prefixes."""
