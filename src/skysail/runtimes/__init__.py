"""Programs that run in users' pods. They import nothing else of Skysail."""
