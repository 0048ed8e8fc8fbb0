"""What the edge agent and the aggregator agree on: names, times, records, subjects, connections."""
