"""Plans judged without training: idle time, spreads, workloads of papers."""
