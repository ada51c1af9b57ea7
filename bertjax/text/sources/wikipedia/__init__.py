"""MediaWiki dumps: pages out of the XML, and running text out of wikitext."""
