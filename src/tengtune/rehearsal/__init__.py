"""`tengtune rehearse`: the user's own run on this machine's CPUs, with a narrow model of the same family."""
