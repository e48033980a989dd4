"""OpenAI request bodies -> Ask, and the error bodies that clients understand."""
