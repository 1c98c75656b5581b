"""What all studies share: jobs over workers, numbers with their errors, tables, charts, what the papers print."""
