"""The Flower ClientApp of a site: `predbayes_flower.study_client:app`.

Node configuration, the site's own:

    site      path of its site.toml, with the key and approvals beside it
    data      path of its table
    kit       path of the coordinator's kit
    out       a folder for the upload and what stays at home
    learner   its choice, where the plan leaves it open
    device    for a network
"""

from __future__ import annotations

from predbayes_flower.client import make_client_app

app = make_client_app()
