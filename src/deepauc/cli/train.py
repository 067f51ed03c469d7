"""`deepauc train`: from one table to a trained run and its report."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepauc.cli import options
from deepauc.cli.console import Output
from deepauc.cli.short_help import HELP_ALL, ShortHelp, rare

if TYPE_CHECKING:
    from deepauc.training.config import Settings


DEFAULT_NAME = "default"  # what --pretrained without a NAME stands for


class TrainCommand(ShortHelp):
    """`--pretrained` may stand alone, which typer's options cannot."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        option = "--pretrained"
        alone = [one == option and (n == len(args) or args[n].startswith("-")) for n, one in enumerate(args, 1)]
        named = [f"{option}={DEFAULT_NAME}" if bare else one for one, bare in zip(args, alone, strict=True)]
        return super().parse_args(ctx, named)


def train(
    context: typer.Context,
    table: Annotated[Path | None, typer.Option(metavar="FILE", help="CSV, TSV or Parquet file.")] = None,
    packed: Annotated[Path | None, rare("Packed data set, instead of --table.", metavar="DIR")] = None,
    image_column: options.ImageColumn = None,
    image_root: options.RareImageRoot = None,
    label_column: Annotated[list[str] | None, options.LABELS] = None,
    feature_column: options.FeatureColumns = None,
    metadata_column: options.MetadataInputs = None,
    category_column: options.CategoryColumns = None,
    group_column: options.GroupColumn = None,
    split_column: options.SplitColumn = None,
    split_of: Annotated[Path | None, rare("Use the split of this run (matched by row id).", metavar="RUN")] = None,
    folds: Annotated[
        str | None, typer.Option(metavar="N|COLUMN", help="Cross-validation; 0: one split (default: auto).")
    ] = None,
    weight_column: options.RareWeightColumn = None,
    positive: options.RarePositive = None,
    id_column: options.RareIdColumn = None,
    bag_column: options.RareBagColumn = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the trained model and its report.")
    ] = None,
    seed: Annotated[int | None, rare("Random seed (default: 0).", metavar="N", min=0)] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Config file (TOML) with these and more options.")
    ] = None,
    print_config: Annotated[bool, rare("Print the complete config file; do not train.", "--print-config")] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, metavar="M", help="Time limit for training, in minutes.")
    ] = None,
    tune: Annotated[int | None, rare("Tune margin and gamma over N settings.", metavar="N", min=1)] = None,
    model: Annotated[str | None, rare("small-cnn, resnet20, mlp or a timm model.", metavar="NAME")] = None,
    pretrained: Annotated[
        str | None,
        typer.Option(metavar="[NAME]", help="Start from ImageNet weights (of network NAME)."),
    ] = None,
    backbone: Annotated[str | None, rare("With --pretrained: frozen or trained.", metavar="KIND")] = None,
    image_size: Annotated[str | None, rare("Resize images; 224 means 224x224.", metavar="HxW")] = None,
    epochs: Annotated[int | None, rare("Epochs per stage.", metavar="N", min=1)] = None,
    first_stage: Annotated[str | None, rare("contrastive or none (default: the plan decides).", metavar="KIND")] = None,
    auc_stage: Annotated[str | None, rare("always or none (default: if time allows).", metavar="WHEN")] = None,
    objective: Annotated[
        str | None, rare("auc-margin (default), all-pairs, partial-auc, average-precision or pdsca.", metavar="NAME")
    ] = None,
    max_fpr: Annotated[float | None, rare("With partial-auc: largest false positive rate.", metavar="RATE")] = None,
    min_tpr: Annotated[float | None, rare("With partial-auc: smallest sensitivity.", metavar="RATE")] = None,
    tta: Annotated[int | None, rare("Test-time augmentation: average N copies.", metavar="N", min=0)] = None,
    pooling: Annotated[
        str | None, rare("With --bag-column: mean, max, smooth-max (default) or attention.", metavar="HOW")
    ] = None,
    images_per_bag: Annotated[
        int | None, rare("Images of a bag per training step (default: 16).", metavar="N", min=1)
    ] = None,
    batch_size: Annotated[int | None, rare("Batch size.", metavar="N", min=2)] = None,
    device: options.RareDevice = None,
    skip_bad: options.RareSkipBad = False,
    allow_outside: options.RareAllowOutside = False,
    tensorboard: Annotated[bool, rare("Write curves to DIR/tensorboard at the end.", "--tensorboard")] = False,
    examples: Annotated[bool, rare("Write examples.html with patients' images.", "--examples")] = False,
    quiet: Annotated[bool, rare("Print only the results.", "--quiet")] = False,
    as_json: Annotated[bool, rare("Print only the result, as JSON.", "--json")] = False,
    help_all: Annotated[bool, HELP_ALL] = False,
) -> None:
    """Train on a table of images or numbers and report. Run again to resume."""
    del help_all  # it has shown itself by now
    given_data = {
        "table": None if table is None else str(table),
        "packed": None if packed is None else str(packed),
        "image_column": image_column,
        "image_root": None if image_root is None else str(image_root),
        "label_columns": tuple(label_column or ()) or None,
        "feature_columns": tuple(feature_column or ()) or None,
        "metadata_columns": tuple(metadata_column or ()) or None,
        "category_columns": tuple(category_column or ()) or None,
        "group_column": group_column,
        "id_column": id_column,
        "bag_column": bag_column,
        "split_column": split_column,
        "split_of": None if split_of is None else str(split_of),
        "weight_column": weight_column,
        "positive": positive,
        "image_size": None if image_size is None else options.parse_size(image_size, option="--image-size"),
        "skip_bad": skip_bad or None,
        "allow_outside": allow_outside or None,
    }
    given_plan = {
        "model": model,
        "epochs": epochs,
        "batch_size": batch_size,
        "minutes": minutes,
        "first_stage": first_stage,
        "auc_stage": auc_stage,
        "tta": tta,
        "pretrained": True if pretrained == DEFAULT_NAME else pretrained,
        "backbone": backbone,
        "objective": objective,
        "max_fpr": max_fpr,
        "min_tpr": min_tpr,
        "pooling": pooling,
        "images_per_bag": images_per_bag,
    }
    top = {"seed": seed, "tune": tune, "folds": None if folds is None else options.parse_folds(folds)}
    settings = _settings(config, data=given_data, plan=given_plan, top=top)
    from deepauc.cli.training_run import print_settings, run_training

    if print_config:
        for option, given in (("--json", as_json), ("--tensorboard", tensorboard), ("--examples", examples)):
            if given:
                raise ValueError(
                    f"{option} needs a training run, and --print-config only prints a config file (TOML): leave out "
                    "one of the two."
                )
        print_settings(settings, device=device)
        return
    if out is None:
        raise ValueError("--out is required, for example --out runs/first.")
    from deepauc.pipeline.cross_validation import CrossValidation, fold_folder
    from deepauc.training.run.tensorboard import summary_writer, write_events

    if tensorboard:
        summary_writer()  # where it is missing, that is said before training, not after
    if examples and (settings.data.table is None or settings.data.image_column is None):
        raise ValueError("--examples shows image files: name a table of them, --table data.csv --image-column file.")
    if examples and (settings.data.metadata_columns or settings.data.category_columns):
        raise ValueError("--examples shows what a network on images alone looks at: leave it out, or the metadata.")
    outcome = run_training(
        settings,
        out=out,
        device=device,
        output=Output(quiet=quiet, as_json=as_json),
        command=command_line(context),
        examples=examples,
    )
    if tensorboard:
        number_of_folds = len(outcome.folds.names) if isinstance(outcome, CrossValidation) else 0
        for folder in [fold_folder(out, number) for number in range(number_of_folds)] or [out]:
            write_events(folder)


def _settings(config: Path | None, *, data: dict[str, Any], plan: dict[str, Any], top: dict[str, Any]) -> Settings:
    """The file's settings, with what the command line says instead where it says something."""
    from deepauc.training.config import Settings, read_settings, with_given

    settings = Settings() if config is None else read_settings(config)
    return with_given(settings, data=data, plan=plan, top=top)


def command_line(context: typer.Context) -> str:
    """The command as it would be typed, for the record: every option that is not at its default."""
    words = ["deepauc", str(context.info_name)]
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if value is None or value is False or value == parameter.default:
            continue
        several = value if isinstance(value, list | tuple) else [value]
        option = parameter.opts[0] if parameter.opts[0].startswith("-") else None
        for one in several:
            words += ([option] if option else []) + ([] if one is True else [str(one)])
    return shlex.join(words)
