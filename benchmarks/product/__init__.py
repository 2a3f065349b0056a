"""What a user of the product meets: rates, latencies, memory, first use."""
