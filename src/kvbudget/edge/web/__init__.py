"""The pages: static files, and the numbers that they draw. No page computes anything."""
