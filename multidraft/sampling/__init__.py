"""From logits to the law that is really drawn from: settings, processors, prefixes."""
