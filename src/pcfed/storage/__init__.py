"""Files: archives of arrays, atomic writes, locks, journals."""
