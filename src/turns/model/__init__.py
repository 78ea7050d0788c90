"""What is stored of turns and said about them: plain values, no behaviour."""
