"""What nobody would send, sent for as long as one likes."""
