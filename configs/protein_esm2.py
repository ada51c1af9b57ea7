"""ESM-2: proteins of UniRef50, a letter a token, rows of 1,022 letters; 8 million to 15 billion parameters.

Reproduces: "Evolutionary-scale prediction of atomic-level protein structure with a language model" (Lin et al. 2023,
    Science 379): 15 % of the letters masked 80/10/10, token dropout, batches of 2 million tokens, Adam with beta2 0.98
    and a weight decay of 0.01, 2,000 steps of warm-up to 4e-4, then a linear decay to a tenth. Variants are its sizes:
    8m, 35m, 150m, 650m, 3b, 15b.
    Not verified in a source: every number of the optimizer, and the 500,000 steps. Not the original: its decay ends
    after 90 % of the steps; several proteins share a row here, where theirs pads each.
Text: UniRef50 clusters, of each a random UniRef90 member in every epoch, 65 million proteins (CC BY 4.0, uniprot.org).
    Name your FASTA with --data.sources. With the FASTA of UniRef90,
    --data.groups mmseqs:members.tsv (a UniRef50 cluster and a member on each line) and --data.sampling groups draw a
    member of each cluster in every epoch, and hold out by cluster.
Expected: perplexity on held-out UniRef50 after 500,000 steps 10.45 (8m), 9.12 (35m), 8.00 (150m), 6.95 (650m) (from
    memory of the paper's table, not verified).
Cost: 8m 7,512,353 parameters, 7.1e19 FLOP; 35m 33,501,153, 2.8e20; 150m 148,139,553, 1.2e21; 650m 651,042,593,
    4.6e21; 3b 2,839,004,193, 1.9e22; 15b 15,129,098,273, 9.8e22. 650m compiled for 128 TPU v5e (`bertjax plan
    protein_esm2:650m --topology v5e:8x16 --training.grad-accum-steps 4 --execution.remat dots --price 1.2`): it fits,
    and takes at least 53.3 hours (6,819 chip-hours); 109.3 hours by the compiler's schedule. For 64 H100 (`--topology
    h100:8x8`): at least 63.9 hours (4,091 chip-hours).
Command: bertjax pretrain protein_esm2 --data.sources 'fasta:uniref50.fasta.gz'
"""

from bertjax.config import Config, DataConfig, ExecutionConfig, OptimizerConfig, TrainingConfig, get_variant
from bertjax.families.esm import ESM

SIZES = {name: preset for name, preset in ESM.presets.items() if name != "base"}
LENGTH = 1_024


def config(variant: str = "8m") -> Config:
    """The published sizes, all with the same batches and rates."""
    return Config(
        name=f"protein_esm2_{variant}",
        model=get_variant(SIZES, variant),
        execution=ExecutionConfig(dtype="bfloat16"),
        data=DataConfig(
            sources=("fasta:uniref50/*.fasta.gz",),
            tokenizer="characters:esm2",
            sequence_length=LENGTH,
            rows="crops",
            packing="pairs",
            pairs_per_row=32,
            max_predictions=154,
        ),
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=4e-4,
            warmup_steps=2_000,
            final_share=0.1,
            beta2=0.98,
            eps=1e-8,
        ),
        training=TrainingConfig(
            steps=500_000,
            global_batch_size=2_048,
            objectives=("mlm",),
            checkpoint_every=2_000,
        ),
    )
