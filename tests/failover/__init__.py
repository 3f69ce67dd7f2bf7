"""Several API servers on one PostgreSQL behind one address, and what happens to what they have acknowledged when one dies."""
