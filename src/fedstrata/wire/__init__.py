"""What travels: frames and the meter that counts them."""
