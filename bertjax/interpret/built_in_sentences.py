"""English sentences to measure on where there is no other text, with some ambiguous words."""

from __future__ import annotations

SENTENCES: tuple[str, ...] = tuple(
    line.strip()
    for line in """
    I went to the store.
    At the store, I bought fresh strawberries.
    The strawberries were sweet, and my sister ate most of the strawberries before dinner.
    After dinner she washed the plates, and her brother dried every plate with a towel.
    The bank raised the interest on every loan last spring.
    My mother opened an account at the bank because the bank was close to her office.
    They sat down on the bank of the river and watched the boats.
    The river was high, and the muddy bank was slowly washed away by the water.
    The hotel has stood on the south bank of the river for a century.
    He paid the money into the bank and walked home through the rain.
    The rain fell all night, and by morning the rain had turned to snow.
    Snow covered the roofs, the cars and the empty road.
    The road to the village was closed, so the bus took another road through the hills.
    The doctor asked the patient how long the pain had lasted.
    The patient told the doctor that the pain had begun two weeks ago.
    Two weeks later the doctors found a cure, and the patients went home.
    The museum opened in 1877 with a collection of old paintings.
    Most of the paintings in the museum were given by a single family.
    The family lived in London until the war, and after the war they moved to Paris.
    Paris is the capital of France, and London is the capital of England.
    In the light of the lamp she could read the first page of the letter.
    The letter was short, and she read it twice before she put the letter away.
    His bag was light, but her bag was heavy with books.
    Every book on the shelf had a blue cover, and one of the books was missing.
    The actors play in the old theatre, and the new play begins at eight.
    The children play football in the park behind the school.
    The school is closed in summer, and the teachers go on holiday.
    A teacher explained the problem, and the students solved the problem in a few minutes.
    The king gave the land to his son, and the queen gave her daughter a ring.
    The queen spoke first, and then the king answered her.
    A dog ran after the cat, but the cat was faster than the dog.
    The old cat sleeps near the fire while the dogs run in the garden.
    There were roses in the garden, and a bee flew from rose to rose.
    The train leaves at nine, and the next train leaves an hour later.
    Athletes train for years before they run in a race like this.
    The race was won by a young runner from Kenya who had never run so fast.
    The function returns the sum of the elements of the array.
    If the array is empty, the function returns zero.
    Water boils at one hundred degrees and freezes at zero degrees.
    The kitchen smelled of coffee, so he asked her for a cup of coffee.
    She filled his cup, sat down at the table, and looked out of the window.
    Outside the window a man was painting the table that he had built.
    He took the right road, and turned right again at the bridge.
    She was right about the bridge: it was built by the Romans.
    The Romans built long roads, strong bridges and high walls.
    The wall of the castle was ten metres high, and nobody could climb the wall.
    The spring in the old clock was broken, so the clock had stopped.
    We wait for spring, when the days are long and the birds come back.
    """.strip().splitlines()
)
