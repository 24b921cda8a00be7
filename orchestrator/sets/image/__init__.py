"""From recorded documents to one relocatable image of create infos."""
