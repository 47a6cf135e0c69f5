"""Imports every module of fedstrata; one that needs an extra which is not installed is passed over."""

import importlib
import pkgutil
import sys

import fedstrata

EXTRAS = ("mlflow", "nvflare", "ray", "wandb")


def main() -> None:
    imported, failed = 0, []
    for module in pkgutil.walk_packages(fedstrata.__path__, "fedstrata."):
        if module.name.endswith(".__main__"):
            continue
        try:
            importlib.import_module(module.name)
            imported += 1
        except Exception as error:
            if not (isinstance(error, ModuleNotFoundError) and str(error.name).split(".")[0] in EXTRAS):
                failed.append(f"{module.name}: {type(error).__name__}: {error}")
    print(f"{imported} modules imported under Python {sys.version.split()[0]}")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
