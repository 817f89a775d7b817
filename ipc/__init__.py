"""Messages, sockets and authentication between Antiphon's processes."""
