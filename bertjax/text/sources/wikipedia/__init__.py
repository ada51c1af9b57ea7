"""MediaWiki dumps: extract pages from the XML, and running text from wikitext."""
