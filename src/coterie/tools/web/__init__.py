"""Tools that search the web and read pages."""
