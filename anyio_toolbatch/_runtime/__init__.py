"""Everything that awaits, sleeps or starts threads."""
