"""Every race of every seed, settled by the database and proven so."""
