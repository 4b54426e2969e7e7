"""Real servers for tests, each started on loopback when the first test asks and gone with the test process."""
