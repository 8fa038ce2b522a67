"""Programs that run inside users' pods. They import nothing else of Skysail."""
