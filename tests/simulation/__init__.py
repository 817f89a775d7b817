"""The whole system in one process, on a virtual clock: the real cores, a simulated world."""
