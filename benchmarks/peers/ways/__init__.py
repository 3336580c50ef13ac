"""One way to run a batch of calls in each file; none imports what another one needs."""
