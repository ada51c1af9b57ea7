"""Write web pages, PDF files and Word documents for tests."""

from __future__ import annotations

import io

PAGE = """<html><head><meta charset="{charset}"><title>Site</title></head><body>
<nav><ul><li><a href="/">Home</a></li><li><a href="/a">Prices</a></li></ul></nav>
<article><h1>The river</h1><p>{text}</p>
<p>The boat stood under the bridge for years, and the water was low.</p></article>
<footer>Imprint and cookies</footer></body></html>"""


def pdf_file(pages: list[list[str]]) -> bytes:
    """Make a PDF file from the lines of each page."""
    import pypdf
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

    writer = pypdf.PdfWriter()
    names = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica", "/Encoding": "/WinAnsiEncoding"}
    font = writer._add_object(DictionaryObject({NameObject(key): NameObject(value) for key, value in names.items()}))
    for lines in pages:
        page = writer.add_blank_page(600, 800)
        fonts = DictionaryObject({NameObject("/F"): font})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        operators = "".join(f"({line}) Tj 0 -14 Td " for line in lines)
        content = DecodedStreamObject()
        content.set_data(f"BT /F 11 Tf 50 750 Td {operators}ET".encode("cp1252"))
        page[NameObject("/Contents")] = writer._add_object(content)
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()


def docx_file(*paragraphs: str) -> bytes:
    """Make a Word document with these paragraphs, a table of four cells, two of them merged, and a header."""
    import docx

    document = docx.Document()
    for text in paragraphs:
        document.add_paragraph(text)
    table = document.add_table(2, 2)
    for cell, text in zip([cell for row in table.rows for cell in row.cells], ("a", "b", "c", "d"), strict=True):
        cell.text = text
    table.cell(1, 0).merge(table.cell(1, 1))
    document.sections[0].header.paragraphs[0].text = "Company secret"
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()
