"""What tests of the explorer share: folders of models that have not learned anything, and a page that shows models.

What that needs is imported where it is used: a GPU machine may not have it.
"""

import pytest


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    from serving import save_models

    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def address(folders):
    """Of a server with the page, for the models that the file's own ``folders`` names, or those here."""
    from serving import serving

    from regard.explorer import page

    with serving(folders, files=page.files()) as client:
        yield f"http://127.0.0.1:{client.port}/"
