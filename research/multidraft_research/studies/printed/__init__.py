"""What the papers print, one file a paper, as it stands there: other models, other hardware."""
