"""What a person looks at after a run: plain data about it (`data`), and a page that shows it."""
