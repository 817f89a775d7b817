"""What every engine process owes its frontends, run against each of them over real sockets."""
