"""What is known of every head from plain text, and the explanation of any row of attention."""
