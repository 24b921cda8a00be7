"""Takes samples, each in a process of its own, then judges and reports them."""
