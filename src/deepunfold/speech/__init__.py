"""Speech enhancement with unfolded non-negative models (Section 5 of the paper)."""
