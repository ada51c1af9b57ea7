"""What people look at: charts, pages and tables of every verb."""
