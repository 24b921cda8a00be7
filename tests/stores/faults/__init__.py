"""The fault suites: every fault, every crash state, kills, damage, cancellation. Their counts are printed."""
