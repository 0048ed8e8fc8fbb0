"""Coverage, intervals and availability, derived from the bronze tables."""
