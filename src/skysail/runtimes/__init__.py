"""What runs inside users' pods. Stands alone: nothing here imports the rest of Skysail."""
