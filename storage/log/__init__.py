"""One replica's log in use: segments, indexes, producer state, leader epochs, reads, appends and flushes."""
